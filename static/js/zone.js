// The browser's time zone, in a cookie for the server; a page that was made before the server knew it is loaded once more.
const COOKIE = "tessera_zone";

export function startZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!zone) return;
  const wanted = `${COOKIE}=${encodeURIComponent(zone)}`;
  const isKnown = () => document.cookie.split("; ").includes(wanted);
  if (isKnown()) return;
  document.cookie = `${wanted}; path=/; max-age=31536000; samesite=lax${location.protocol === "https:" ? "; secure" : ""}`;
  const { zone: shown, zoneChoice } = document.documentElement.dataset;
  // A browser without cookies would load the page for ever.
  if (zoneChoice === "browser" && shown !== zone && isKnown()) location.reload();
}
