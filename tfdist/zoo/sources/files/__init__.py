"""What the sources of files share: reading and checking files, and records in any order."""
