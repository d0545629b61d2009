"""What this machine is known to take: seconds of a forward by its size, stored and kept up to date."""
