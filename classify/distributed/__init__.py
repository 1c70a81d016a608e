"""Process group, collectives and sharding."""
