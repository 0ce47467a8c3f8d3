"""The transforms: what each means (a definition in plain PyTorch), and the pipeline that compiles it."""
