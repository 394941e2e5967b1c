"""The dashboard: one static page, its script and its style; no build step, no request to anywhere else."""
