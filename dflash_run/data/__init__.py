"""Training data: files → tokens with loss masks → a memory-mapped cache → samples, splits and batch plans."""
