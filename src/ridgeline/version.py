"""The version, apart from the public names, whose types refer to every layer."""

__version__ = "0.1.0"
