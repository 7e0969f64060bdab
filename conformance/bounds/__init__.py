"""What the spec says of multi-head attention (MHA-…) and its sub-layer (SUB-…), and their error bounds."""
