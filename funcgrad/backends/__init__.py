"""From a graph of ATen calls to something that runs."""
