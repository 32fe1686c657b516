"""Dask over RDMA: the schemes ``rdma://`` and ``rdmas://`` of dask.distributed's addresses.

Nothing needs to be imported: once the package is installed, distributed finds it by its entry points when an
address with one of these schemes is used.
"""

from __future__ import annotations

from .paths import comm_paths

__all__ = ["comm_paths"]

__version__ = "0.1.0"
