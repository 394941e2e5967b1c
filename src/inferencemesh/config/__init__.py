"""The configuration: schema, loading with line numbers, environment and file interpolation."""

from inferencemesh.config.load import Loaded, from_document, load, read
from inferencemesh.config.model import Mesh, Model
from inferencemesh.config.problems import ConfigError, Problem

__all__ = ["ConfigError", "Loaded", "Mesh", "Model", "Problem", "from_document", "load", "read"]
