"""Who goes next, and is there room?"""

__version__ = "0.1.0"

__all__ = ["__version__"]
