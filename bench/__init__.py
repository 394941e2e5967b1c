"""Measures the gateway beside nginx, HAProxy and Envoy. Not part of the installed package; see README.md."""
