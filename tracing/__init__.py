"""What a run leaves behind: DAGs, critical paths, traces and views of them."""
