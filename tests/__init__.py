"""The tests are a package of this name: installed libraries bring one too, which would come first."""
