"""Subscribers of core.events: metrics and the request log. Nobody in the data path waits for them."""
