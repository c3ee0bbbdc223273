"""The waiting requests: request classes, order of service, and the dispatch of freed capacity."""
