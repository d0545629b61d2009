"""Other libraries that call Paceline, and engines that its methods are exported to."""
