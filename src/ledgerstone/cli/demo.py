def demo(call): pass
