"""The transforms: what each means (a definition in plain PyTorch), and the spine that compiles it."""
