export function openFeed(){}
