"""All crews of this folder in one registry: `duck.answer`, `hostile.sleeps`, `scripted.pair`."""

from tests.crews import duck, hostile, scripted

crews = {
    f"{module.__name__.rpartition('.')[2]}.{crew_id}": entry
    for module in (duck, hostile, scripted)
    for crew_id, entry in module.crews.items()
}
