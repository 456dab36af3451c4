"""What all of the package uses and nobody else: arrays of either library, sizes, lazy attributes, extras."""
