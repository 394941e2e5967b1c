"""Who a caller is: keys and tenants."""
