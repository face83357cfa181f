"""ONNX graphs as policy networks: their model, the reader and the guard for graphs from a peer, the session, and the export.

- `model`: the contents of a model, a builder, and the encoding.
- `reader`: reads a model from bytes. `rules`: says what a graph from a peer may contain.
- `session`: computes a graph in onnxruntime. `export`: writes a policy as a model for other programs.
"""
