"""Programs for developers, and for the build of wheels."""
