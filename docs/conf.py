"""Sphinx configuration. `make docs` builds it; a warning is an error."""

from importlib import metadata

project = "aiordma"
author = "the aiordma authors"
copyright = "the aiordma authors, Apache-2.0"
release = metadata.version("aiordma")
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# The results are included by benchmarks.md.
exclude_patterns = [
    "_build",
    "benchmarks-results.md",
    "benchmarks-apps-results.md",
    "benchmarks-counted-results.md",
    "benchmarks-hosts-results.md",
    "howto/dask-results.md",
]
nitpicky = False

html_theme = "furo"
html_title = f"aiordma {release}"
html_theme_options = {"source_repository": "", "navigation_with_keys": True}

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
