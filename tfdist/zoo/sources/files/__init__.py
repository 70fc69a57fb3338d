"""What the sources of files share: records, images, messages about damaged files."""
