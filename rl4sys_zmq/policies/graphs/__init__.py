"""ONNX graphs as policy networks: how they are built, read, checked, computed and exported.

- `model`: the contents of a model, a builder, and the encoding.
- `reader`: reads a model from bytes. `rules`: defines what a graph from a peer may contain.
- `session`: computes a graph in onnxruntime. `export`: writes a policy as a model for other programs.
"""
