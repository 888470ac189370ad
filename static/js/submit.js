export function startSubmit() {}
