// Runs before the page's own script: notes everything that must not happen.
window.pmvetTrouble = [];
window.addEventListener("error", (event) => pmvetTrouble.push(`error: ${event.message}`));
window.addEventListener("unhandledrejection", (event) => pmvetTrouble.push(`rejection: ${event.reason}`));
document.addEventListener("securitypolicyviolation", (event) => pmvetTrouble.push(`request: ${event.blockedURI}`));
