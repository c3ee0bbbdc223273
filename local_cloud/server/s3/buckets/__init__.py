"""Operations on buckets and their configuration."""
