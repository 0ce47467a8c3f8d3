"""House rules as tests. A package, so that a file here may be called like one in tests/."""
