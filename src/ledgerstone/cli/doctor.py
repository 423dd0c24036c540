def doctor(call): pass
