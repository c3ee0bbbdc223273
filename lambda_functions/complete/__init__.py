"""The messages of completion queues: results, reports, failures of functions, notices."""
