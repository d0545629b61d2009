"""The decode loop (`loop`), the calls it makes (`calls`), and the drivers that answer them (`serial`, `batch`)."""
