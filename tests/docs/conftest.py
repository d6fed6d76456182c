"""The archive of a training, for the queries of the guides."""

from tests.zeus_stream.conftest import ran

__all__ = ["ran"]
