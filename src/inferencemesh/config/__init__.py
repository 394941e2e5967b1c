"""The configuration: schema, loading with line numbers, environment and file interpolation."""
