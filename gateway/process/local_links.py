"""x"""
class LocalLinks:
    def __init__(self, *, health): self.health=health
    async def add(self, link, sock): sock.close()
    def note_fault(self, fault): self.health.set_fault(f"{fault.provider}/{fault.model_id}", fault.reason)
    async def close(self): pass
