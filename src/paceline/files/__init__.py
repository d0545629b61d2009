"""Files from outside: how they are opened, and what their JSON must look like."""
