"""The paper's tables, figures, algorithms and claims, on this machine: what is missing is run, what is there is used again."""
