"""The life of a request: functions on a transaction of the store, one module for each noun."""
