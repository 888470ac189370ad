// Stores the time zone of the browser in a cookie. A page rendered before the server knew the zone is loaded again.
const COOKIE = "tessera_zone";

export function startZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!zone) return;
  const wanted = `${COOKIE}=${encodeURIComponent(zone)}`;
  const isKnown = () => document.cookie.split("; ").includes(wanted);
  if (isKnown()) return;
  document.cookie = `${wanted}; path=/; max-age=31536000; samesite=lax${location.protocol === "https:" ? "; secure" : ""}`;
  const { zone: shown, zoneChoice } = document.documentElement.dataset;
  // Without cookies, the page would be reloaded forever.
  if (zoneChoice === "browser" && shown !== zone && isKnown()) location.reload();
}
