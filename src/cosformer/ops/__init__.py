"""Mathematics on tensors: the definition, the linear forms, the kernels, and the one public operator."""
