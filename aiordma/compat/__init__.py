"""The asyncio surface: functions of the same names as asyncio's, with real transports and stream readers."""
