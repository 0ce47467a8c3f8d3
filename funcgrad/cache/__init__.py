"""What outlives a process: folders on disk, and what is kept there."""
