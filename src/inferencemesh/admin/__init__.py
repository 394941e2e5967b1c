"""The admin port: metrics, live state, dashboard."""
