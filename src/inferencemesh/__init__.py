"""InferenceMesh: an inference gateway that bounds the work it accepts and owns it until the response has ended."""

__version__ = "0.1.0"
