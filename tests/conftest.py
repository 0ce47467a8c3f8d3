"""Tests keep what they compute in a folder of their own."""

import os
import tempfile

from hypothesis import settings

os.environ.setdefault("FUNCGRAD_CACHE_DIR", tempfile.mkdtemp(prefix="funcgrad-tests-"))

# A first example may import or compile; how long it takes says nothing about what is tested.
settings.register_profile("funcgrad", deadline=None)
settings.load_profile("funcgrad")
