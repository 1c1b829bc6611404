"""The only way to reach files that may be remote: local disk, S3, Google Cloud Storage, web servers, and others."""
