"""Tests keep what they compute in a folder of their own."""

import os
import tempfile

os.environ.setdefault("FUNCGRAD_CACHE_DIR", tempfile.mkdtemp(prefix="funcgrad-tests-"))
