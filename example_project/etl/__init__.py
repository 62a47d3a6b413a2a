"""A pretended ETL: three regions, a dozen table slices, a report, a health check and a broken export."""
